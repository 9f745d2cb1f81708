"""Your own JSON lines, by a mapping of their keys."""

from typing import ClassVar

from bcd4rec.data.files import Kind
from bcd4rec.data.readers._columns import ColumnsReader
from bcd4rec.data.readers.reader import READERS


@READERS.register("jsonl")
class JsonLinesReader(ColumnsReader):
    """A file with one JSON object per line (or a folder of such files), each a shown item or a slate."""

    kind: ClassVar[Kind] = "jsonl"
