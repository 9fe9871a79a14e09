"""How commands print: texts for people, documents and lines of JSON for programs."""
