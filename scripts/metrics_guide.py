"""When to worry about each metric of a server: the last column of docs/metrics.md.

A metric without an entry, and an entry without a metric, fail `tests/docs/test_reference.py`.
"""

from __future__ import annotations

from typing import Final

CALM: Final = "–"
"""For a metric that alone is never a reason to worry: it gives others their scale."""

WORRY: Final[dict[str, dict[str, str]]] = {
    "The server": {
        "ready": "0 for longer than a restart takes: `/readyz` has the reason.",
        "build_info": "Two versions for longer than an upgrade takes.",
    },
    "Requests and readers": {
        "requests_total": "5xx above zero, or 4xx that grow much faster than 2xx: look at "
        "`errors_total` for the code.",
        "errors_total": "`internal`, `stored-data-damaged` or `store-read-only` above zero. "
        "`overloaded` and `disk-full` say that the machine is too small.",
        "live_readers": "Near `live_readers_max`, if you have set it; a fall to zero is clients "
        "that were cut off.",
        "request_seconds": "A 99th percentile of `POST /v1/stream/{path}` above 0.25. Compare "
        "`commit_seconds` (the disk) with `loop_lag_seconds` (the processor).",
        "request_bytes": CALM,
        "response_bytes": CALM,
        "connections": "Near `connections_max`, above which further ones are refused.",
        "reads_total": "A fall to zero while readers are running.",
        "sse_events_total": CALM,
        "sse_dropped_total": "Growing: readers on slow lines, or pages that do too much in one "
        "event. They resume, but each time from further back.",
        "bytes_out_total": "Near the bandwidth of the machine.",
    },
    "The event loop": {
        "loop_lag_seconds": "A 99th percentile above 0.05: requests wait for each other.",
        "loop_lag_max_seconds": "Above 1. The log has the request that held the loop up.",
        "loop_stalls_total": "Growing. The log has a line for each.",
    },
    "Streams": {
        "appends_total": "A fall to zero while writers are running.",
        "append_messages_total": CALM,
        "bytes_in_total": "Against the free space of the disk: how long it lasts.",
        "duplicates_total": "Growing steadily: answers do not reach producers, which repeat.",
        "creates_total": "A rate that you cannot explain: a client that makes a stream a request.",
        "forks_total": CALM,
        "trims_total": "None, if you have set limits of retention.",
        "compactions_total": CALM,
        "compacted_bytes_total": CALM,
        "deletes_total": "A jump: somebody deletes what others use. The audit log names them.",
        "expired_total": CALM,
        "streams": "Growing without end: streams that nobody deletes and no TTL ends.",
        "stored_bytes": "Growing faster than the disk: set a retention.",
        "open_streams": "At `active_streams_max` for long: streams are loaded again and again.",
    },
    "The store": {
        "disk_free_bytes": "Near `disk_reserve_bytes`, below which appends get 507.",
        "commit_batch_size": "Always 1 with many writers: they wait for each other.",
        "commit_seconds": "A 99th percentile above 0.1: the disk is slow or shared. It is what "
        "an append waits for.",
        "fsync_seconds": "As `commit_seconds`; the part of it that is the disk alone.",
        "commit_failures_total": "Above zero: the store is read-only until a restart.",
        "journal_bytes": "More than a few times `checkpoint_bytes`: checkpoints do not keep up.",
        "journal_written_bytes_total": CALM,
        "journal_cut_bytes_total": "Above zero after a clean stop. After a kill it is an append "
        "that was never acknowledged.",
        "journal_files_set_aside_total": "Above zero: the start could not use a file of the "
        "journal. Copy the folder before you do anything else.",
        "catalog_repairs_total": "Above zero: the disk has changed bytes. Run `penstock verify`.",
        "checkpoints_total": "None for longer than `checkpoint_interval_s` while there are "
        "appends.",
        "checkpoint_failures_total": "Growing: the journal grows with it, and so does the time "
        "of the next start.",
        "checkpoint_seconds": "Near `checkpoint_interval_s`.",
        "tail_bytes": "Near `tail_bytes_max`: appends are about to get 503.",
    },
    "Tiered storage": {
        "tier_segment_bytes": "`local` growing without end: segments do not move.",
        "tier_cold_segments": CALM,
        "tier_uploads_total": "None while there are segments older than `tier_after_s`.",
        "tier_uploaded_bytes_total": CALM,
        "tier_upload_failures_total": "Growing: the object store cannot be reached, or refuses. "
        "Segments stay on the disk, which fills.",
        "tier_removals_total": CALM,
        "tier_removal_failures_total": "Growing: you pay for objects that nobody reads.",
        "tier_fetches_total": "A rate that you cannot explain: somebody reads the whole past.",
        "tier_fetched_bytes_total": "Against the price of the object store.",
        "tier_fetch_failures_total": "Growing: reads of cold data fail.",
        "tier_damaged_objects_total": "Above zero: an object is missing or damaged. Restore it "
        "from a backup.",
        "tier_cache_bytes": CALM,
        "tier_pieces_total": "Many misses for each hit: `tier_cache_bytes_max` is too small.",
    },
    "State": {
        "state_lag_streams": "Above zero for minutes.",
        "state_lag_bytes": "Growing: reads of `/v1/state` fold more and more of the log.",
        "state_indexed_bytes_total": CALM,
        "state_skipped_total": "Growing: somebody appends messages that are no events.",
        "state_refused_total": "Growing: a writer does not keep to the declaration.",
        "state_warnings_total": "Growing: the same, in mode `warn`, where it is let in.",
        "state_expired_total": CALM,
        "state_checks_ended_total": "Above zero: a schema or a value takes too long to check.",
    },
    "Tables": {
        "table_readers": CALM,
        "table_readers_dropped_total": "Growing: followers on slow lines.",
        "table_bytes_out_total": CALM,
        "table_rows_written_total": "A fall to zero while writers are running.",
        "table_refused_total": "Growing: a writer sends what rows cannot express.",
        "table_resets_total": "Unexpected: each writes a `-` row for every live key.",
        "table_keys": "Near `table_keys_max`.",
        "table_keys_unknown_total": "Growing: the state index is behind.",
        "table_cache_bytes": CALM,
        "table_blocks_total": "Many misses for each hit: readers at many places at once.",
    },
    "Peers": {
        "stp_notices_total": CALM,
        "stp_notices_ignored_total": "Growing: a peer names hosts that `stp_peers` does not.",
        "stp_notifies_total": CALM,
        "stp_notify_failures_total": "Growing: a peer cannot be reached.",
        "stp_notify_given_up_total": "Above zero: that peer is told nothing more until it asks.",
        "stp_notifies_pending": "Above zero for minutes.",
        "stp_listeners": "`given-up` above zero.",
        "stp_follows": "`failing` or `ended` above zero: that mirror is old.",
        "stp_follow_rows_total": CALM,
        "stp_follow_unchanged_total": CALM,
        "stp_follow_conflicts_total": "Above zero: a source has changed rows that it had sent.",
        "stp_follow_requests_total": CALM,
        "egress_requests_total": CALM,
        "egress_failures_total": "Growing: other servers cannot be reached.",
        "egress_refused_total": "Above zero: somebody made the server call an address that it "
        "must not. The log names it.",
    },
    "Subscriptions": {
        "subscriptions": "`failed` above zero.",
        "subscriptions_pending": "Growing: workers do not keep up.",
        "webhooks_in_flight": "High and steady: receivers are slow.",
        "subscription_wakes_total": CALM,
        "subscription_claims_total": CALM,
        "subscription_acks_total": "A fall to zero while there are wakes.",
        "subscription_releases_total": "As many as claims: workers cannot do their work.",
        "subscription_fenced_total": "Growing: workers are slower than their leases.",
        "subscription_leases_expired_total": "Growing: workers die, or are slower than leases.",
        "webhook_deliveries_total": CALM,
        "webhook_failures_total": "Growing.",
    },
    "Backups and scrubs": {
        "backups_total": CALM,
        "backup_failures_total": "Growing: the log has the reason.",
        "backup_last_success_timestamp_seconds": "Older than twice the time between two backups.",
        "scrub_bytes_total": CALM,
        "scrub_errors_total": "Above zero: stored data is damaged. Restore it, and check the disk.",
        "scrub_last_finished_timestamp_seconds": "Much older than `scrub_interval_s`, in a server "
        "that has run for that long.",
    },
    "Audit": {
        "audit_events_total": CALM,
        "audit_events_lost_total": "Above zero: there are admin actions that no log has.",
    },
    "Proxy": {
        "proxy_calls": "Near `proxy_calls_max`: further calls are refused.",
        "proxy_recordings_total": "`failed` growing: an upstream breaks off, is silent or is too "
        "slow for the limits. `interrupted` comes from stops of the server.",
    },
}
