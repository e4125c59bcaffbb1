"""What the project is made with: publishing figures, chaos, releases, counting the road."""
