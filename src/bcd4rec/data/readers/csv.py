"""Your own CSV and TSV files, by a mapping of their columns."""

from typing import Any, ClassVar

from pydantic import field_validator

from bcd4rec.data.files import Kind
from bcd4rec.data.readers._columns import ColumnsReader
from bcd4rec.data.readers.reader import READERS


@READERS.register("csv")
class CsvReader(ColumnsReader):
    """A CSV or TSV file (or a folder of such files), one row per shown item or per slate, in UTF-8."""

    kind: ClassVar[Kind] = "csv"

    delimiter: str = ""
    """The character between two fields; `tab` for a tabulator. By default the one that the header has most of."""
    columns: tuple[str, ...] = ()
    """The names of the columns of files without a header, in their order."""

    @field_validator("columns", mode="before")
    @classmethod
    def _listed(cls, columns: Any) -> Any:
        return [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, delimiter: str) -> str:
        delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
        if delimiter and (len(delimiter.encode()) != 1 or delimiter in '"\r\n'):
            raise ValueError(f"delimiter is {delimiter!r}, expected one character such as ; or | or the word tab")
        return delimiter

    @property
    def scanning(self) -> dict[str, Any]:
        return {"separator": self.delimiter or None, "names": self.columns}
