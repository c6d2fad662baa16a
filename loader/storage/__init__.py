"""What the loader keeps and publishes, behind three small protocols: `protocols` says what each must guarantee, and
`local` is a directory of a local file system behind all of them."""
