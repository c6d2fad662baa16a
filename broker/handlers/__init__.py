"""One module per kind of request; `dispatch` is the table of them."""
