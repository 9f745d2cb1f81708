"""Your own Parquet files, by a mapping of their columns."""

from typing import ClassVar

from bcd4rec.data.files import Kind
from bcd4rec.data.readers._columns import ColumnsReader
from bcd4rec.data.readers.reader import READERS


@READERS.register("parquet")
class ParquetReader(ColumnsReader):
    """A Parquet file (or a folder of such files), one row per shown item or per slate."""

    kind: ClassVar[Kind] = "parquet"
