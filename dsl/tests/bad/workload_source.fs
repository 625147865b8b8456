workload w { evaluate leave_last_out }
