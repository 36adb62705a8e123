"""Clients of State URLs and Notify URLs of any STP server: rules without I/O, and shells that run
them on `penstock.Client` and `penstock.AsyncClient`.

Users import `Table`, `AsyncTable`, `Notifier` and `AsyncNotifier` from `penstock.stp`.
"""
