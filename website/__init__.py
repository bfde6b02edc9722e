"""The documentation site: `python -m website`, or `make docs`.

Pages that people write lie in `docs/`. What can be read off the source is generated beside copies of them, and so is
true of the source it was built from: the reference of the library and of the command line, the papers' pages, and all
sentences that an error may say. Zensical makes HTML of both; nothing in it is fetched from elsewhere when it is read.
"""
