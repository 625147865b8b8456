cluster hal from dgx_h10
cluster h20
