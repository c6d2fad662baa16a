"""A warehouse in a directory of HDFS or of a bucket (`s3a://`), through the JVM of the driver's Spark.

`file_system` is the common interface to HDFS and S3A, and `jvm` implements it; commit log, staging and files use only
this interface. The JVM uses the cluster's configuration: its `core-site.xml`, tokens, encryption zones, credential
providers and committers apply as for every other job.
"""

from __future__ import annotations

from headrace.loader.storage.hadoop.commit_storage import HadoopCommitStorage
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem
from headrace.loader.storage.hadoop.files import HadoopFiles
from headrace.loader.storage.hadoop.staging import HadoopStaging
from headrace.loader.storage.protocols import Storage

LOG_DIRECTORY = "_headrace"


def hadoop_storage(file_system: RemoteFileSystem, warehouse: str) -> Storage:
    """Returns the storage of the warehouse at the URI `warehouse`, which is accessed through `file_system`. Reads and
    writes nothing yet."""
    log = f"{warehouse}/{LOG_DIRECTORY}"
    staging = HadoopStaging(file_system, log)
    return Storage(HadoopCommitStorage(file_system, log), staging, HadoopFiles(file_system, warehouse, staging))
