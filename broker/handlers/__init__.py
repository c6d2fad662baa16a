"""Request handlers: mostly one module per API, all listed in `dispatch`."""
