"""What `legato serve` runs besides its endpoints: workers, leases, writer heartbeats, self-monitoring, the admin socket.

``supervisor.Workers`` starts and stops all of it; ``admin_commands`` are the functions behind the admin socket and the command line. The
room may import every room but ``cli`` and ``query``.
"""
