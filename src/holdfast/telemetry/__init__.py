"""What Holdfast says about itself: every event's name, and how it is written."""
