"""Clients of State URLs and Notify URLs, of any server that speaks STP: rules without I/O, and
shells that run them on `penstock.Client` and `penstock.AsyncClient`.

`Table`, `AsyncTable`, `Notifier` and `AsyncNotifier` are imported from `penstock.stp`.
"""
