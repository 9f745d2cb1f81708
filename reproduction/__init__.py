"""The paper's tables and figures: which runs they need (`studies.toml`) and what is read off them (one file each)."""
