workload w { csv "ratings.csv" { item "movieId"  when "timestamp" } }
workload v { safetensors batches }
