-- Records how far PostgreSQL's clock is ahead of that of the index.
--
-- ARGV[1]  present time by PostgreSQL's clock (us)
-- Returns  1 when the difference has changed by more than a second
--! include keys
local now_ahead = tonumber(ARGV[1]) - now_us()
if math.abs(now_ahead - rows_ahead()) <= STEP_US then return 0 end
redis.call('HSET', SETTINGS, 'rows_ahead', whole(now_ahead))
return 1
