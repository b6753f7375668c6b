"""What the dashboard is served with: its files, login, chats, live state, models."""
