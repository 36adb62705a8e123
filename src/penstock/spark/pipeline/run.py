"""The run of a pipeline: from streams to the warehouse batch by batch, and published results back.

    from penstock.spark.pipeline.run import run_pipeline
    run_pipeline(load_pipeline(Path("pipeline.toml")), once=True)

One commit of events makes a batch count; state and published results follow from what is committed,
so that a run that ends anywhere is resumed by the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import limits
from penstock.errors import PenstockError, QueryFailed
from penstock.spark.config import Pipeline, Run, Source
from penstock.spark.error_text import (
    error_message,
    is_java_gone,
    silence_pyspark_logging,
    unwrap_penstock_error,
)
from penstock.spark.frames import lags_of
from penstock.spark.offsets import from_spark
from penstock.spark.options import source_options
from penstock.spark.pipeline.checkpoint import Checkpoint
from penstock.spark.pipeline.declarations import DriftWatch, with_declarations
from penstock.spark.pipeline.driver_batches import DirectBatches
from penstock.spark.pipeline.owner import owner_of
from penstock.spark.pipeline.preflight import (
    check_master,
    check_source,
    check_warehouse,
    notify_unselected,
)
from penstock.spark.pipeline.progress import Meter, Progress, serving_metrics
from penstock.spark.pipeline.publish import Publisher
from penstock.spark.pipeline.signals import stopped_by_signals
from penstock.spark.sessions.session import needs_classic, register, session
from penstock.spark.stream_progress import Lags
from penstock.spark.warehouse import declared
from penstock.spark.warehouse.catalog import Registration, session_settings
from penstock.spark.warehouse.dead_letters import recount
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import WRITTEN_DDL, BatchResult, writer_of
from penstock.spark.warehouse.fold import fold_here, fold_in_spark
from penstock.spark.warehouse.optimize import optimize_if_due
from penstock.spark.warehouse.rebuild import switch_rebuilt
from penstock.spark.warehouse.spark_sql import SparkViews
from penstock.spark.warehouse.vacuum import vacuum_if_due
from penstock.spark.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Positions = dict[str, Any] | None
"""Offsets of the source as Spark stores them; None: it has not stored any."""


class PipelineRun:
    """One run of a pipeline in a Spark session."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        on_note: Callable[[str], None] | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._spark = spark
        self._on_progress = on_progress
        self._notify = on_note or _silent
        assert pipeline.warehouse.checkpoint is not None
        needs_classic(spark, "A pipeline")
        self._checkpoint = Checkpoint(pipeline.warehouse.checkpoint, pipeline.warehouse.options)
        self.warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
        self._pipeline = pipeline = with_declarations(pipeline, self.warehouse, self._notify)
        self._drift = DriftWatch(pipeline, self._notify)
        replaces = pipeline.run.snapshots == "replace"
        self._duck = Duck(self.warehouse, pipeline.types, replaces=replaces)
        self._views = SparkViews(spark, self.warehouse, pipeline.types, replaces=replaces)
        self._publisher = Publisher(pipeline, self.warehouse, self._views, self._notify)
        self._registration = Registration(spark, pipeline, self.warehouse)
        self._driver_rows = pipeline.run.driver_rows
        if self._driver_rows is None and not str(spark.sparkContext.master).startswith("local"):
            self._driver_rows = limits.PIPELINE_DRIVER_ROWS
        self._direct = self._direct_batches(pipeline.source.starting)
        self._query_id: str | None = None
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._refused = False  # whether a batch came after the stop
        self._busy = threading.Lock()  # held while a batch is processed
        self.meter = meter or Meter()

    def run(self, *, once: bool = False, resume_from_warehouse: bool = False) -> None:
        """Read until stopped; with `once` up to the current tails of the streams."""
        try:
            self._run(once=once, resume=resume_from_warehouse)
        except Exception as error:
            if is_java_gone(error):
                raise _as_penstock_error(error) from error
            raise

    def _run(self, *, once: bool, resume: bool) -> None:
        # Checked before the warehouse is opened: a run that must not start changes nothing.
        starting = check_warehouse(self._pipeline, self.warehouse, self._checkpoint, resume=resume)
        notify_unselected(self._pipeline.source, self.warehouse, self._notify)
        self._direct = self._direct_batches(starting)
        self._checkpoint.check_reach(self._spark)
        # Spark starts two Pythons to create a source, while tables are opened and caught up.
        with ThreadPoolExecutor(1, "penstock-source") as aside:
            rows = aside.submit(self._rows, starting)
            self.warehouse.open(self._pipeline.types, owner=owner_of(self._pipeline))
            self._run_opened(rows, once=once, resume=resume)
        self._raise_failure()

    def _run_opened(self, rows: Future[DataFrame], *, once: bool, resume: bool) -> None:
        try:
            if resume:
                self._checkpoint.put_aside()
            for entity in switch_rebuilt(self.warehouse, self._pipeline.types):
                self._notify(f"state of {entity} switched to its rebuilt table")
            if self._pipeline.server_types:
                declared.note(self.warehouse, self._pipeline)
            self._publisher.open()
            self._catch_up()
            with self._checkpoint.written_without_programs(self._spark):
                self._follow(rows, once=once)
            if self._failure is None:
                self._fold(everything=True)
                self._publisher.close()
                self._registration.update()
        finally:
            with self._busy:  # without Java a batch continues for a while
                self.warehouse.close()
                self._duck.close()

    def _direct_batches(self, starting: Any) -> DirectBatches:
        options = source_options(_source_options(self._pipeline.source, starting))
        return DirectBatches(options, messages_max=self._pipeline.run.driver_messages)

    def _catch_up(self) -> None:
        """Fold and publish what earlier runs committed, and what was replayed since."""
        recount(self.warehouse, self._duck)
        self._fold()
        self.meter.published += self._publisher.publish()

    def stop(self) -> None:
        """Request an end after the current batch. Signal handlers may call it."""
        self._stopping.set()

    def _follow(self, rows: Future[DataFrame], *, once: bool) -> None:
        stopped = False
        try:
            query = self._query = self._stream(rows.result(), once=once).start()
            if not once:
                self._notify(f"reading {', '.join(self._pipeline.source.streams)}")
            # Waiting in Spark would be wrong: an interrupt inside Py4J breaks its connection.
            while query.isActive:
                if self._stopping.wait(limits.PIPELINE_POLL_MS / 1000):
                    with self._busy:
                        stopped = bool(query.isActive)
                        query.stop()
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - Spark wraps whatever happened in its own
            # The error of a query that was stopped is about the stop.
            if self._failure is None and not stopped and not self._refused:
                self._failure = _as_penstock_error(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _rows(self, starting: Any) -> DataFrame:
        """The events of the streams, live."""
        register(self._spark)
        options = _source_options(self._pipeline.source, starting)
        return self._spark.readStream.format("durable_streams").options(**options).load()

    def _stream(self, rows: DataFrame, *, once: bool) -> DataStreamWriter:
        writer = rows.writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        if once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{self._pipeline.run.interval_s} seconds")

    def _batch(self, rows: DataFrame, batch: int) -> None:
        """Called by Spark with each batch, including one that a killed run had begun."""
        try:
            with self._busy:
                if self._stopping.is_set():
                    self._refused = True
                    # After a return Spark would record the batch as done.
                    raise QueryFailed("The pipeline was stopped before this batch.")
                self._process(rows, batch)
        except BaseException as error:
            if not self._refused:
                self._failure = _as_penstock_error(error)
            raise

    def _process(self, rows: DataFrame, batch: int) -> None:
        start_s = time.monotonic()
        events = self.warehouse.events
        self.warehouse.check()
        before = events.record.events
        query = self._query_id = self._query_id or self._checkpoint.query or ""
        if not events.has(query, batch):
            start = self._checkpoint.positions(batch - 1) if batch else self._direct.first_start()
            end = self._checkpoint.positions(batch)
            result = self._write(rows, start, end)
            events.append(result, query=query, batch=batch, positions=end)
            self._count_streams(start, end, time.monotonic() - start_s)
        self._fold()
        self.meter.published += self._publisher.publish()
        self.meter.unkeyed = self._publisher.unkeyed
        self.meter.violations = self._violations()
        self.meter.troubles = len(self._publisher.troubles)
        self._drift.look()
        self.meter.drifts = len(self._drift.drifts)
        self._maintain()
        record = events.record
        progress = self.meter.batch(
            number=record.batch,
            events=record.events - before,
            total=record.events,
            invalid=record.invalid,
            seconds=time.monotonic() - start_s,
        )
        if self._on_progress is not None:
            self._on_progress(progress)

    def _count_streams(self, start: Positions, end: Positions, seconds: float) -> None:
        if start is None or end is None:
            return  # where a first batch began that has no offsets, only Spark knows
        lags = Lags({}, {}) if self._query is None else lags_of(self._query)
        self.meter.streams(from_spark(start), from_spark(end), lags, seconds)

    def _violations(self) -> dict[str, int]:
        """The violations of each expectation: of types in all events, of results in the current
        ones."""
        pipeline, total = self._pipeline, self.warehouse.events.record.violations
        names = [f"{name}.{each.name}" for name, group in pipeline.expect.items() for each in group]
        types = {f"types.{name}": total.get(name, 0) for name in names}
        results = self._publisher.violations.items()
        return {**types, **{f"publish.{name}": count for name, count in results}}

    def _write(self, rows: DataFrame, start: Positions, end: Positions) -> BatchResult:
        """Write the events of a batch to files that are not committed yet."""
        events = self.warehouse.events
        number, types = events.record.batch + 1, self._pipeline.types
        options = self.warehouse.options
        expect = self._pipeline.expect
        write = writer_of(events.uri, types, number, datetime.now(UTC), options, expect)
        if start is None or end is None:
            written = rows.mapInArrow(write, WRITTEN_DDL).collect()
            return BatchResult.of(row.asDict() for row in written)
        if self._direct.is_small(start, end):
            summaries = write(self._direct.read(start, end))
            return BatchResult.of(row for part in summaries for row in part.to_pylist())
        return BatchResult.of(self._direct.in_tasks(self._spark, start, end, write))

    def _fold(self, *, everything: bool = False) -> None:
        """Fold the state tables that are due; with `everything` all that are behind."""
        settings, record = self._pipeline.run, self.warehouse.events.record
        stale = True
        for entity in self._duck.entities():
            state = self._duck.stored(entity)
            due = state.is_due(record, rows=settings.fold_rows, percent=settings.fold_percent)
            if not due and not (everything and state.is_behind(record)):
                continue
            count = record.types.get(entity)
            rows = state.folded.rows + (count.changes - state.folded.changes if count else 0)
            if self._driver_rows is None or rows <= self._driver_rows:
                if stale:
                    self._duck.refresh()
                    stale = False
                fold_here(self._duck, entity, record)
            else:
                self._views.refresh()
                fold_in_spark(self._views, entity, record)
                state.refresh()
            self.meter.folds += 1

    def _maintain(self) -> None:
        """Register new tables, vacuum if that is due, and optimize the files of events every so
        many batches."""
        self._registration.update()
        vacuum_if_due(self.warehouse, keep_hours=self._pipeline.run.keep_hours)
        optimize_if_due(self.warehouse, self._pipeline)


def _source_options(source: Source, starting: Any) -> dict[str, str]:
    options = {
        "url": source.url,
        "streams": msgspec.json.encode(source.streams).decode(),
        "startingOffsets": _text(starting),
        "maxBytesPerTrigger": str(source.max_bytes or limits.PIPELINE_BATCH_BYTES),
        "minPartitions": str(source.min_partitions),
        "maxAttempts": str(source.attempts),
        "failOnDataLoss": str(source.fail_on_data_loss).lower(),
    }
    if source.token:
        options["token"] = source.token
    if source.max_messages is not None:
        options["maxMessagesPerTrigger"] = str(source.max_messages)
    return options


def _text(starting: str | dict[str, Any]) -> str:
    return starting if isinstance(starting, str) else msgspec.json.encode(starting).decode()


def _as_penstock_error(error: BaseException) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return unwrap_penstock_error(error) or QueryFailed(error_message(error))


def run_pipeline(
    pipeline: Pipeline,
    *,
    once: bool = False,
    master: str | None = None,
    resume_from_warehouse: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Progress:
    """Run a pipeline in a Spark session of its own.

    `on_progress` is called after every batch, `on_note` with other lines for the user.
    """
    check_master(master)
    meter, notify = Meter(), on_note or _silent
    with _metrics(meter, pipeline.run, notify):
        checkpoint = Checkpoint(pipeline.warehouse.checkpoint or "", pipeline.warehouse.options)
        warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
        if pipeline.server_types:  # schemas come from the server, so that it has to answer first
            check_source(pipeline.source, notify)
            pipeline = with_declarations(pipeline, warehouse, notify)
            check_warehouse(pipeline, warehouse, checkpoint, resume=resume_from_warehouse)
        else:
            check_warehouse(pipeline, warehouse, checkpoint, resume=resume_from_warehouse)
            check_source(pipeline.source, notify)
        notify("starting Spark …")
        with stopped_by_signals(notify) as stop:
            spark = _session(pipeline, master)
            # Errors are reported once, in a sentence; Spark's own log would be pages of Java.
            spark.sparkContext.setLogLevel("FATAL")
            silence_pyspark_logging()
            try:
                run = PipelineRun(
                    pipeline, spark, on_progress=on_progress, on_note=notify, meter=meter
                )
                stop.on_request(run.stop)
                run.run(once=once, resume_from_warehouse=resume_from_warehouse)
            finally:
                with suppress(Exception):  # if Java has ended there is nothing to stop
                    spark.stop()
    return meter.last


def _session(pipeline: Pipeline, master: str | None) -> SparkSession:
    try:
        catalog = session_settings(pipeline.warehouse.catalog)
        config = {"spark.log.level": "FATAL", **catalog, **pipeline.run.spark}
        # What Arrow loads with its first dataset takes as long as a tenth of Java's start.
        threading.Thread(target=import_module, args=("pyarrow.dataset",), daemon=True).start()
        return session("penstock pipeline", master=master, config=config, quiet=True, sources=False)
    except PenstockError:
        raise
    except Exception as error:  # of Java, Py4J or Spark
        hint = "Do the settings in [pipeline.spark] fit?"
        if master is not None and not master.startswith("local"):
            hint = "Does the master answer, and does it reach this machine?"
        raise QueryFailed(
            f"Spark cannot be started on {master or 'this machine'}: {error_message(error)} {hint}"
        ) from error


def _silent(_: str) -> None:
    """The default of `on_note`."""


@contextmanager
def _metrics(meter: Meter, settings: Run, notify: Callable[[str], None]) -> Iterator[None]:
    """A context in which metrics are served, if a port is set."""
    if settings.metrics_port is None:
        yield
        return
    with serving_metrics(meter, settings.metrics_host, settings.metrics_port) as address:
        notify(f"metrics at {address}")
        yield
