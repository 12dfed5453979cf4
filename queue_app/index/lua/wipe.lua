-- Deletes keys of earlier generations, unless a later rebuild has begun: its keys stay.
--
-- ARGV[1]  number of the generation that wipes    ARGV[2..]  full keys, at most 1000; none in the first call
-- Returns  1, or 0 when the index carries another generation by now
--! include keys
if redis.pcall('HGET', GENERATION, 'number') ~= ARGV[1] then return 0 end
if #ARGV > 1 then redis.call('UNLINK', unpack(ARGV, 2)) else redis.call('HDEL', GENERATION, 'reshaped') end
return 1
