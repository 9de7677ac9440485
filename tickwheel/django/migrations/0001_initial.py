"""The tables of tasks."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = ()

    operations = (
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.CharField(editable=False, max_length=64, primary_key=True, serialize=False)),
                ("priority", models.BigIntegerField(default=50)),
                ("epoch", models.BigIntegerField(default=0)),
                ("time_next", models.BigIntegerField(null=True)),
                ("time_acked", models.BigIntegerField(null=True)),
                ("topic", models.CharField(max_length=255)),
                ("body", models.TextField()),
            ],
            options={
                "verbose_name": "task to be sent",
                "verbose_name_plural": "tasks to be sent",
                "db_table": "tickwheel_task_outbox",
                "indexes": [models.Index(fields=["time_acked", "time_next"], name="tickwheel_outbox_next")],
            },
        ),
        migrations.CreateModel(
            name="TaskRecord",
            fields=[
                ("id", models.CharField(editable=False, max_length=64, primary_key=True, serialize=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("READY", "Ready"),
                            ("RUNNING", "Running"),
                            ("FAILED", "Failed"),
                            ("SUCCESSFUL", "Successful"),
                        ],
                        default="READY",
                        max_length=10,
                        verbose_name="status",
                    ),
                ),
                ("backend", models.CharField(max_length=255, verbose_name="backend")),
                ("queue", models.CharField(max_length=255, verbose_name="queue")),
                ("task_path", models.TextField(verbose_name="task")),
                ("args", models.JSONField(default=list, verbose_name="arguments")),
                ("kwargs", models.JSONField(default=dict, verbose_name="named arguments")),
                ("priority", models.SmallIntegerField(default=0, verbose_name="priority")),
                (
                    "schedule",
                    models.CharField(blank=True, default="", max_length=255, verbose_name="schedule"),
                ),
                ("run_after", models.DateTimeField(blank=True, null=True, verbose_name="not before")),
                ("enqueued_at", models.DateTimeField(verbose_name="enqueued")),
                ("started_at", models.DateTimeField(blank=True, null=True, verbose_name="first started")),
                (
                    "last_attempted_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="last started"),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished")),
                ("cancelled_at", models.DateTimeField(blank=True, null=True, verbose_name="cancelled")),
                ("worker_ids", models.JSONField(default=list, verbose_name="workers")),
                ("errors", models.JSONField(default=list, verbose_name="errors")),
                ("return_value", models.JSONField(blank=True, null=True, verbose_name="return value")),
                ("failures", models.PositiveIntegerField(default=0, verbose_name="attempts that failed")),
                (
                    "lost_workers",
                    models.PositiveIntegerField(default=0, verbose_name="workers that were lost"),
                ),
                ("message_id", models.BigIntegerField(default=0, verbose_name="message")),
                ("delivery", models.BigIntegerField(default=0, verbose_name="delivery")),
            ],
            options={
                "verbose_name": "task",
                "verbose_name_plural": "tasks",
                "db_table": "tickwheel_task",
                "ordering": ("-enqueued_at",),
                "indexes": [
                    models.Index(fields=["enqueued_at"], name="tickwheel_task_enqueued"),
                    models.Index(fields=["status", "finished_at"], name="tickwheel_task_status"),
                ],
            },
        ),
    )
