"""What this house adds to upkeep's program."""

from typing import Final

from pylog_spark.house import House

HOUSE: Final = House(
    commands="pylog_spark.cluster.cli.commands:COMMANDS",
    guards="pylog_spark.cluster.refusals:GUARDS",
    remarks="pylog_spark.cluster.refusals:REMARKS",
    warm_up="pylog_spark.cluster.warmup:digest",
    find_absent_voters="pylog_spark.cluster.metadata_copies:find_absent_voters",
    diagnose_brokers="pylog_spark.cluster.doctor:diagnose_brokers",
    open_healing="storage_core.cluster.healing_commit:open_healing",
    operations={
        "truncate": "pylog_spark.cluster.truncate:truncate",
        "heal": "pylog_spark.cluster.heal:heal",
    },
    for_a_person={
        "transplant": "storage_core.cluster.transplant.plan:TransplantReason",
        "attach": "storage_core.cluster.attachment:AttachReason",
    },
)
