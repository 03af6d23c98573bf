"""The HTTP connections of the command line: which key may go to which address, and through which proxy."""
