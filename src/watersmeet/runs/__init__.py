"""Rows on disk: pages, runs, and the catalogues that remember them."""
