"""Attention of a draft tree's rows to their committed prefix and their ancestors."""
