"""`synthctl filter`: from traces to a dataset, in constant memory however many there are."""
