"""Request handlers: one module per API, listed in `dispatch`."""
