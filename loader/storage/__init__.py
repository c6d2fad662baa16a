"""The loader's storage, behind three protocols. `protocols` documents their guarantees; `local` implements them for a
directory of a local file system, `hadoop` for HDFS and S3."""
