"""Tasks in Django's admin: to look at, and to take back."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from django.contrib import admin, messages
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from tickwheel.client.results import CancelResult
from tickwheel.django.backend import TickwheelBackend
from tickwheel.django.framework import InvalidTaskBackend, task_backends
from tickwheel.django.models import TaskRecord


@admin.register(TaskRecord)
class TaskRecordAdmin(admin.ModelAdmin):
    """Rows are what became of tasks; nothing can be typed in."""

    list_display = (
        "task_path",
        "id",
        "status",
        "queue",
        "priority",
        "attempts",
        "run_after",
        "enqueued_at",
        "finished_at",
    )
    list_filter = ("status", "queue", "backend", "schedule")
    search_fields = ("id", "task_path", "schedule")
    date_hierarchy = "enqueued_at"
    ordering = ("-enqueued_at",)
    actions = ("cancel_tasks",)
    show_full_result_count = False
    fieldsets = (
        (None, {"fields": ("id", "task_path", "status", "queue", "backend", "priority", "schedule")}),
        (_("Arguments"), {"fields": ("shown_args", "shown_kwargs")}),
        (
            _("Times"),
            {
                "fields": (
                    "enqueued_at",
                    "run_after",
                    "started_at",
                    "last_attempted_at",
                    "finished_at",
                    "cancelled_at",
                )
            },
        ),
        (
            _("What became of it"),
            {"fields": ("shown_value", "failures", "lost_workers", "shown_workers", "shown_errors")},
        ),
    )

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        """All of them."""
        return [name for _title, options in self.fieldsets for name in options["fields"]]

    def has_add_permission(self, request: Any) -> bool:
        """Tasks are enqueued by code."""
        return False

    @admin.display(description=_("attempts"))
    def attempts(self, record: TaskRecord) -> int:
        """How often it was begun."""
        return record.attempts

    @admin.display(description=_("arguments"))
    def shown_args(self, record: TaskRecord) -> str:
        """As JSON."""
        return _json(record.args)

    @admin.display(description=_("named arguments"))
    def shown_kwargs(self, record: TaskRecord) -> str:
        """As JSON."""
        return _json(record.kwargs)

    @admin.display(description=_("return value"))
    def shown_value(self, record: TaskRecord) -> str:
        """As JSON."""
        return _json(record.return_value) if record.status == "SUCCESSFUL" else "-"

    @admin.display(description=_("workers"))
    def shown_workers(self, record: TaskRecord) -> str:
        """One a line."""
        return format_html_join("", "{}<br>", ((one,) for one in record.worker_ids)) or "-"

    @admin.display(description=_("errors"))
    def shown_errors(self, record: TaskRecord) -> str:
        """Each with its traceback."""
        errors = ((one["exception_class_path"], one["traceback"]) for one in record.errors)
        return format_html_join("", "<strong>{}</strong><pre>{}</pre>", errors) or "-"

    @admin.action(description=_("Cancel the selected tasks"), permissions=["change"])
    def cancel_tasks(self, request: Any, queryset: Any) -> None:
        """Takes back what has not begun, or waits for another attempt."""
        answers: Counter[str] = Counter()
        for record in queryset:
            try:
                backend = task_backends[record.backend]
            except InvalidTaskBackend:
                backend = None
            if isinstance(backend, TickwheelBackend):
                answers[backend.cancel(record.id, stop=True).value] += 1
            else:
                answers["unknown backend"] += 1
        done = {CancelResult.CANCELLED.value, CancelResult.STOPPED.value}
        level = messages.SUCCESS if answers.keys() <= done else messages.WARNING
        self.message_user(
            request,
            ", ".join(f"{count} {answer.replace('_', ' ')}" for answer, count in answers.items()),
            level,
        )


def _json(value: Any) -> str:
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))
