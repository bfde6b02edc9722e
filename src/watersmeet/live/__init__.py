"""A run to look at: a live page on the loopback interface, the same as one file, and metrics for Prometheus.

All three draw from the history that every run keeps (`drivers.history`)::

    run ──progress──▶ history ──▶ board ──▶ page.Page      GET /         one self-contained page
                                    │       (a thread)     GET /events   what has changed, ten times a second
                                    │                      GET /metrics  Prometheus' text format
                                    └──▶ html.report       the same page with the run inside, to be opened offline

Nothing here is imported, and no thread or port opened, unless somebody asks for it.
"""
