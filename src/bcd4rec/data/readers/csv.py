"""Your own CSV files, by a mapping of their columns."""

from typing import ClassVar

from pydantic import field_validator

from bcd4rec.data.readers._columns import ColumnsReader
from bcd4rec.data.readers.reader import READERS


@READERS.register("csv")
class CsvReader(ColumnsReader):
    """A CSV file with a header (or a folder of such files), one row per shown item, in UTF-8."""

    text: ClassVar[bool] = True

    delimiter: str = ","
    """The character between two fields; `tab` for a tabulator."""

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str) -> str:
        delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
        if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
            raise ValueError(f"delimiter is {delimiter!r}, expected one character such as ; or | or the word tab")
        return delimiter

    @property
    def separator(self) -> str:
        return self.delimiter
