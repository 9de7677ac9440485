"""The first tables."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            "Order",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("state", models.CharField(max_length=10, default="open")),
                ("reminder", models.CharField(max_length=64, default="")),
            ],
        ),
        migrations.CreateModel(
            "Letter",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("text", models.TextField()),
            ],
        ),
    )
