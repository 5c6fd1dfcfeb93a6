"""The file format of OpenAI's batch API: one HTTP request a line in, one response a line out."""
