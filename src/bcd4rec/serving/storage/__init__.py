"""What the server showed and what people answered, in a database: SQLite or PostgreSQL."""
