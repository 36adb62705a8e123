"""Tables of a Spark Declarative Pipeline, from streams of a Penstock server: every change of the
streams shop/**, and how many of each type there are."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock.spark

spark = SparkSession.active()
penstock.spark.register(spark)


@dp.table
def changes() -> DataFrame:
    """Every change, read once: the pipeline keeps the offsets."""
    stream = spark.readStream.format("durable_streams").option("url", os.environ["PENSTOCK_URL"])
    return stream.option("streams", "shop/**").load().where("kind = 'change'")


@dp.materialized_view
def changes_by_type() -> DataFrame:
    return spark.read.table("changes").groupBy("type").agg(f.count("*").alias("changes"))
