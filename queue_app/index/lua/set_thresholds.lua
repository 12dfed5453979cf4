-- Copies the thresholds of promotion from the policies of the bands. Moves no task: the next promotion uses them.
--
-- ARGV[1]  seconds after which a waiting task of band normal counts as high, or '' for never
-- ARGV[2]  the same for low to normal    ARGV[3]  the same for background to low
-- Returns  1 when anything changed
--! include keys
local changed = 0
for i = 1, 3 do
  local field = 'promote_' .. (i + 1)
  if (redis.call('HGET', SETTINGS, field) or '') ~= ARGV[i] then
    changed = 1
    if ARGV[i] == '' then redis.call('HDEL', SETTINGS, field) else redis.call('HSET', SETTINGS, field, ARGV[i]) end
  end
end
return changed
