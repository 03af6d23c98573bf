"""The HTTP connections of a client: its configuration, which key may go to which address, and through which proxy."""
