"""The archive: what is done goes to Parquet files, checked, before the broker forgets it; and comes back from there."""

from tickwheel.spark.archive.archiving import ArchiveReport, TopicCount, archive
from tickwheel.spark.archive.restoring import RestoreReport, restore

__all__ = ["ArchiveReport", "RestoreReport", "TopicCount", "archive", "restore"]
