-- Leaves requests for later whose consumer could do nothing about them: the try does not count.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  group    ARGV[2]  consumer    ARGV[3]  how often they were tried without this time
-- ARGV[4]  for how many ms they count as taken already    ARGV  then ids of entries, at most 500
-- Returns  how many were there
--! include keys
local postponed = 0
for i = 5, #ARGV do
  local found = redis.call('XCLAIM', REQUESTS, ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[4], 'RETRYCOUNT', ARGV[3],
    'JUSTID')
  postponed = postponed + #found
end
return postponed
