"""`/v1/table`: tables of STP as resources."""
