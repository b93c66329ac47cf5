# Heavy-tailed sizes after the description in the IRN paper: half of the flows are single packets, 15 % are
# 200 kB to 3 MB, and the rest lies between.
# columns: flow size in bytes, cumulative percent
32 0
1000 50
200000 85
3000000 100
