"""SQL engines behind one interface: DuckDB in this process, Trino and Starburst over HTTP.

port.py      the interface: `Engine`, `SubmittingEngine`, capabilities, errors
registry.py  the engines by name, with their options; opens each when it is first used
options.py   the options of all engines, made from the settings by the program that opens them
select.py    checks that a text is one read-only SELECT; sources.py has the names that such a SELECT may use
sql.py       identifiers and SELECT lists
duckdb/      a sandboxed database per query        trino/  our own client of Trino's statement protocol

Nothing here reads settings or knows a service. A service opens an engine with options, gives it a `Query`, and closes it:

    engines = configured_engines(EngineOptions.from_settings(settings))
    engine = engines.get("trino")
    async with engine.stream(Query("SELECT 1 AS a", tag="report-7")) as rows:
        async for batch in rows.batches(): ...

A statement that changes something and returns a result later is submitted and polled:

    trino = submitting(engine)
    handle = await trino.submit(Query("ALTER TABLE t EXECUTE optimize", tag="optimize-7"))
    status = await trino.poll(handle, query)      # until status.phase is not RUNNING
"""
