"""Which tokens the next step computes, who gives way when memory is short, and how steps overlap."""
