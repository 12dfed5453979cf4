-- Postpones requests that their consumer could not carry out yet: this try does not count.
--
-- ARGV[1]  group    ARGV[2]  consumer    ARGV[3]  number of tries before this one
-- ARGV[4]  ms for which they count as taken already    ARGV[5..]  ids of entries, at most 500
-- Returns  how many entries were there
--! include keys
local postponed = 0
for i = 5, #ARGV do
  local claimed = redis.call('XCLAIM', REQUESTS, ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[3],
    'JUSTID')
  postponed = postponed + #claimed
end
return postponed
