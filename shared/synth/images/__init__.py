"""Images that a model is shown: what a file of one is, the patches that it becomes, and their places in a prompt."""
