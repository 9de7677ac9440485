"""What the shop does later."""

from shop.models import Letter, Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task(queue_name="letters")
def remind(order_id):
    """Asks for the money, unless it is there."""
    if Order.objects.filter(pk=order_id, state="open").exists():
        Letter.objects.create(text=f"Please pay order {order_id}.")


@task(queue_name="letters", priority=10)
def thank(order_id):
    """Thanks for it."""
    Letter.objects.create(text=f"Thanks for order {order_id}.")


@task
def count_orders():
    """How many orders there are; runs each night."""
    return Order.objects.count()
