"""A directory of HDFS or of a bucket behind `s3a://` as a warehouse, through the JVM of Spark that the driver has
anyway.

`file_system` says what is asked of either, `hdfs` and `s3a` do it, and slots, staging and files are the same for both.
The JVM is configured as the cluster is: its `core-site.xml`, tokens, encryption zones, credential providers and
committers count here as they do for every other job.
"""

from __future__ import annotations

from headrace.loader.storage.hadoop.commit_storage import HadoopCommitStorage
from headrace.loader.storage.hadoop.file_system import RemoteFileSystem
from headrace.loader.storage.hadoop.files import HadoopFiles
from headrace.loader.storage.hadoop.staging import HadoopStaging
from headrace.loader.storage.protocols import Storage

LOG_DIRECTORY = "_headrace"


def hadoop_storage(file_system: RemoteFileSystem, warehouse: str) -> Storage:
    """The storage of the warehouse at this URI; nothing is made or looked at yet."""
    log = f"{warehouse}/{LOG_DIRECTORY}"
    staging = HadoopStaging(file_system, log)
    return Storage(HadoopCommitStorage(file_system, log), staging, HadoopFiles(file_system, warehouse, staging))
