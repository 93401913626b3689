"""Folders of second moments: written whole or not at all, resumed, merged exactly, and read one layer at a time."""

from lowbit.formats.statistics.data import DataDigest, DataPart, Shard
from lowbit.formats.statistics.fingerprint import model_fingerprint
from lowbit.formats.statistics.folder import Group, Statistics, is_statistics, open_statistics
from lowbit.formats.statistics.writer import StatisticsWriter, merge_statistics, save_statistics

__all__ = [
    "DataDigest",
    "DataPart",
    "Group",
    "Shard",
    "Statistics",
    "StatisticsWriter",
    "is_statistics",
    "merge_statistics",
    "model_fingerprint",
    "open_statistics",
    "save_statistics",
]
