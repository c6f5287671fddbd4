"""``pylog scrub``: is what lies in a tier whole, and do brokers know it?"""

from typing import Any, Final

from pylog_spark.cli.runner import Call, ProgressLine, Tasks, Work, check_topics, load_options
from pylog_spark.cli.verify import (
    look_for_page,
    shown_findings,
    teller_of,
    view_findings,
    with_writer,
)
from pylog_spark.operations.scrub import ScrubRequest, archive_of, scrub
from pylog_spark.operations.verify.driver import VerifyReport
from pylog_spark.options.declared import (
    ARCHIVE,
    DECRYPTION_KEY,
    DEEP,
    FAIL_ON,
    GRACE,
    METRICS_FILE,
    RECHECK,
    REPORT,
    ROOT_OF_TOPIC,
)
from pylog_spark.options.option import CommandLine
from pylog_spark.run.guards import check_ledger, check_outside
from storage_core.store.tier_archive import ArchivePlace


def _prepare(line: CommandLine) -> Call:
    options = load_options(line)
    root = archive_of(line[ARCHIVE])
    check_ledger([root], options.ledger)
    check_outside(REPORT.label, line[REPORT], [root])
    check_outside(METRICS_FILE.label, options.metrics_file, [root])
    notes: tuple[str, ...] = ()
    if options.include or options.exclude:
        folders, _ = ArchivePlace(place=root.location).open().listing
        topics = {folder.partition.topic for folder in folders}
        notes = check_topics(options.include, options.exclude, topics, [root.location])
    return with_writer(Call(line=line, options=options, roots=[root], notes=notes))


def _scrub(call: Call, place: Any) -> VerifyReport:
    line = call.line
    key = line[DECRYPTION_KEY]
    request = ScrubRequest(
        roots=line[ROOT_OF_TOPIC],
        decryption_key=None if key is None else str(key.absolute()),
        is_deep=line[DEEP],
        grace_ms=line[GRACE],
        recheck_ms=line[RECHECK],
        fail_on=line[FAIL_ON].severity,
        shown=shown_findings(call),
    )
    with ProgressLine(is_shown=call.has_progress) as progress:
        report = scrub(
            place,
            line[ARCHIVE],
            call.options,
            request,
            on_findings=teller_of(call),
            on_progress=progress.on_progress,
        )
    report.release()  # no view has the findings beyond those of the report
    return report.with_notes(call.notes)


SCRUB: Final = Work(
    name="scrub",
    prepare=_prepare,
    operate=_scrub,
    look_for_page=look_for_page,
    view=view_findings,
    tasks=Tasks.HERE_IF_FEW,
    asks_ledger=True,
    reads=lambda call: [call.line[ARCHIVE]],
)
