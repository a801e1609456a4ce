"""Why a head looks where it looks: its attention to one key, by who wrote query and key."""
